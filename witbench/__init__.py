"""witbench: training runs that carry a witness, the attacks on them, and what is caught."""

__version__ = "0.1.0"
