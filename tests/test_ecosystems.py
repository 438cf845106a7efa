"""The benchmark of other libraries' networks: its table."""

from benchmarks.ecosystems import table


def test_the_table_has_means_over_halves_and_a_row_for_each_kind_of_run():
    def run(seed, directions, sigma):
        figures = {"accuracy": 0.8, "balanced_accuracy": 0.5, "sigma": sigma, "worst": 0.25}
        kind = {"seed": seed, "directions": directions, "parameters": "*", "verdict": "better", "seconds": 2.0}
        return kind | {"before": figures | {"sigma": 0.2}, "after": figures}

    runs = [run(0, "class-gradients", 0.1), run(1, "class-gradients", 0.12), run(0, "both", 0.15)]
    done = [{"case": "timm:resnet18", "weights": 11180103, "runs": runs}, {"case": "x", "left_out": "why"}]
    lines = table(done).splitlines()
    assert lines[2:] == [
        "| timm:resnet18 | 11,180,103 | class-gradients, 2 halves | 80.00 → 80.00 | 20.00 → 11.00 | 25.00 → 25.00 "
        "| 2.0 |",
        "| timm:resnet18 | 11,180,103 | both, 1 halves | 80.00 → 80.00 | 20.00 → 15.00 | 25.00 → 25.00 | 2.0 |",
    ]
