"""Objects of Kubernetes' API: one model of each kind, in the fields that a reader here needs.

A model passes over all other fields. Its fields are optional if the API server or a client may leave them
out; a reader that requires one derives a stricter model. A field whose value is long and that is not needed
for all pods of a cluster stands in a model that is derived from the smaller one, for example `PodSpec` from
`PodSpecDemand`: decoding the smaller one takes a tenth of the time and of the memory.

`tests/test_structure.py` holds that a field of Kubernetes' is declared in one model.
"""
