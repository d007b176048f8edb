"""Automatic fail-over of a pair through etcd: who may be the master, decided by one key there."""
