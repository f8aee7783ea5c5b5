"""What runs inside a worker: the contract of simulators, and a folder for each of ours."""
