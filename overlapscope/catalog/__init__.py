"""The words of a report and what stands behind each: causes, trust checks, buckets and terms, one record a word.

Records only. Rules, interventions and metrics have registries of their own; the records name them by id.
"""
