"""What `rlvr plan` predicts beside what step.py has measured: plan.py --model MODEL W1.json W2.json ..."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from rlvr_step import configuration

from rlvr.commands import plan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("reports", nargs="+", type=Path, help="what step.py --json has written")
    args = parser.parse_args()
    libraries = 0
    print("| workload | engine | predicted MiB | measured MiB | ratio |\n|---|---|---|---|---|")
    for report in (json.loads(path.read_text()) for path in args.reports):
        for engine in sorted(report["sides"].keys() & {"hf", "vllm"}):
            measured = report["sides"][engine]
            num_rows = report["prompts_per_step"] * report["group_size"]
            sizes = (report["prompts_per_step"], report["group_size"], report["new_tokens"])
            config = configuration(engine, args.model, "unread", *sizes)
            with tempfile.TemporaryDirectory() as folder:
                config, lengths = plan.inputs(config, Path(folder), round(measured["prompt_tokens"] / num_rows))
                libraries = libraries or plan.resident_bytes()  # later this process holds more than a run's
                predicted = plan.peak(plan.rows(config, lengths, libraries)) / plan.MIB
            ratio = predicted / measured["peak_mib"]
            print(f"| {report['workload']} | {engine} | {predicted:,.0f} | {measured['peak_mib']:,.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
