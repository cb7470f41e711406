"""Which partition a key goes to, as Kafka's own clients have it: so records written here lie beside those of other producers."""

from aiokafka.partitioner import murmur2


def partition_of_key(key: bytes, partitions: int) -> int:
    """The partition, of so many, of a key."""
    return int((murmur2(key) & 0x7FFFFFFF) % partitions)
