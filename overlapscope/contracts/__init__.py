"""Overlap contracts: ops that may overlap by a program's order, and checks that they still may."""
