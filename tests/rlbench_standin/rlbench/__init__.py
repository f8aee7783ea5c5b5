"""A stand-in for RLBench: the same signatures (tests/data/rlbench_signatures.json), a tiny world behind them.

It misbehaves as RLBench and CoppeliaSim were seen to: see `world.py`. Its results say nothing about RLBench.
"""
