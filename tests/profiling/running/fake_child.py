"""A child that keeps the executor child's contract without running operators: standard library alone, so it is quick.

GKEST_FAKE (JSON): ``{"behaviour": {id: word}, "seconds": time per entry, "journal": file, "latency_us": times}``; with
``latency:id`` or ``timeline:id`` a word counts in that pass alone. Words: fail, skip, segv,
hang, exit3, exit1, once-segv:FILE (crashes while FILE is absent, making it).
"""

import argparse
import json
import os
import signal
import sys
import time

parser = argparse.ArgumentParser()
for name in (
    "entries",
    "records",
    "executor",
    "device",
    "seed",
    "pass",
    "warmup",
    "repeats",
    "min-ms",
    "kineto",
):
    parser.add_argument(f"--{name}")
told = parser.parse_args()
fake = json.loads(os.environ.get("GKEST_FAKE", "{}"))
if fake.get("refuse"):
    print(fake["refuse"])
    sys.exit(2)
with open(told.entries, encoding="utf-8") as stream:
    entries = json.load(stream)["entries"]


def note(word: str, entry: str) -> None:
    if fake.get("journal"):
        with open(fake["journal"], "a", encoding="utf-8") as journal:
            journal.write(f"{os.getpid()} {vars(told)['pass']} {word} {entry}\n")


def name(entry: str) -> None:
    current = told.records + ".current"
    with open(current + ".new", "w", encoding="utf-8") as out:
        out.write(entry)
    os.replace(current + ".new", current)


for entry in entries:
    entry_id = entry["id"]
    name(entry_id)
    note("begin", entry_id)
    words, of_pass = fake.get("behaviour", {}), f"{vars(told)['pass']}:{entry_id}"
    word = words.get(of_pass, words.get(entry_id, "ok"))
    time.sleep(fake.get("seconds", 0.01))
    record = {"entry_id": entry_id, "status": "ok", "repeats": 5, "host_us": fake.get("host_us", [10.0] * 5)}
    if vars(told)["pass"] == "latency":
        if "model" not in entry:
            print(f"{entry_id}: no whole model")
            sys.exit(2)
        record["latency_us"] = fake.get("latency_us", {}).get(entry_id, [1000.0] * 5)
        record["memory"] = {"reserved_bytes": 2**20, "allocated_bytes": 2**19, "device_bytes": None}
    if word == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif word == "hang":
        time.sleep(3600)
    elif word == "exit2":
        print("records.jsonl: cannot be written: No space left on device")
        sys.exit(2)
    elif word == "exit1":
        print("no more words")
        sys.exit(1)
    elif word.startswith("once-segv:") and not os.path.exists(word[10:]):
        open(word[10:], "w", encoding="utf-8").close()
        os.kill(os.getpid(), signal.SIGSEGV)
    elif word in ("fail", "exit3"):
        record = {"entry_id": entry_id, "status": "failed", "reason": "as told"}
    elif word == "skip":
        record = {"entry_id": entry_id, "status": "skipped", "reason": "as told"}
    with open(told.records, "a", encoding="utf-8") as out:
        out.write(json.dumps(record) + "\n")
        out.flush()
        os.fsync(out.fileno())
    note("end", entry_id)
    if word == "exit3":
        print("CUDA error: an illegal memory access was encountered")
        sys.exit(3)
