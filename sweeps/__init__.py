"""Sweeps: plan, submit, resume and collect many trials. Installed as `witbench.sweeps`."""
