"""What ignis is compared with: one module a peer, all behind the interfaces of :mod:`bench.peers.base`."""
