"""The generator of the suite: `make conformance-data`. Expected values come from oracles that are not Onward."""
