"""The topic and broker settings that Kafka clients can describe and alter."""
