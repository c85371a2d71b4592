"""The Aerospike store: the same queues for many machines, and for the Java library IgnisMQ. Needs ``ignis-mq[aerospike]``.

The store is `store.AerospikeStore`, its settings `options.AerospikeOptions`; nothing is imported here, so that the options
can be looked at without the driver.
"""
