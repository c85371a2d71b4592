"""What keeps queues in order beside their consumers: the sweeper, the refresher, the autoscaler."""
