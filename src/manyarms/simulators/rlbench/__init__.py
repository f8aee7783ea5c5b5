"""RLBench on CoppeliaSim: ``rlbench/reach_target``."""
