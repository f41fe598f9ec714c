"""Words of a report and their meanings: causes, trust checks, buckets and terms, with a record per word.

These are records only. Rules, interventions and metrics have registries of their own; the records refer to them by id.
"""
