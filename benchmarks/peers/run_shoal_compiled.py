"""Shoal as it trains a model that the native engine does not know: the step compiled, in worker
processes."""

from benchmarks.peers.run_shoal import main
from simulation.engine.options import EngineOptions

if __name__ == "__main__":
    main(EngineOptions("compiled"))
