"""Reading what an offline run of Weights & Biases has written."""
import glob
import json
from pathlib import Path


def log_records(data: bytes):
    """Read a log of LevelDB, which wandb's files are after 7 bytes of their own: blocks of 32 KiB with records of checksum, length and kind."""
    place, parts = 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        length, kind = int.from_bytes(data[place + 4:place + 6], "little"), data[place + 6]
        parts += data[place + 7:place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # the whole of a record, or its end
            yield parts
            parts = b""


def wandb_history(folder: Path) -> dict[str, list]:
    """Read what the offline runs of a folder hold: (step, value) by key."""
    from wandb.proto.wandb_internal_pb2 import Record

    found: dict[str, list] = {}
    for path in sorted(glob.glob(str(folder / "wandb" / "offline-run-*" / "*.wandb"))):
        for data in log_records(Path(path).read_bytes()):
            record = Record.FromString(data)
            if record.WhichOneof("record_type") == "history":
                row = {"".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
                for key, value in row.items():
                    found.setdefault(key, []).append((row["step"] if "step" in row else row["_step"], value))
    return found
