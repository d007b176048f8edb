"""This node's part in a pair: replication as the service and the admin API see it. Layer 6."""
