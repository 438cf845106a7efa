"""Make the pages of `docs/results` from the JSON files there: `make results`."""

from pathlib import Path

from hessian_surgery.reproduce.results import write_results

if __name__ == "__main__":
    print("\n".join(write_results(Path(__file__).parent / "results")))
