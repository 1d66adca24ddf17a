"""What the checks stand on: where things live, what is installed, brokers, clients, and how a check is run."""
