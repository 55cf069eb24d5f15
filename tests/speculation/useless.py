#!/usr/bin/env python3
"""A draft that knows nothing: the weights of another one, in another order.

    useless.py DRAFT OUT

Writes a checkpoint of the same shapes to OUT. Every matrix is shuffled, the same way each time. Needs Python 3 and nothing else.
"""

import json
import random
import shutil
import struct
import sys
from pathlib import Path


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    draft, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    shutil.copy(draft / "config.json", out / "config.json")
    data = (draft / "model.safetensors").read_bytes()
    (header_length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + header_length])
    values = bytearray(data[8 + header_length :])
    order = random.Random(1)
    for name, tensor in sorted(header.items()):
        if name == "__metadata__" or len(tensor["shape"]) < 2:
            continue
        if tensor["dtype"] != "BF16":
            sys.exit(f"{name} is {tensor['dtype']}; BF16")
        begin, end = tensor["data_offsets"]
        words = list(struct.unpack(f"<{(end - begin) // 2}H", values[begin:end]))
        order.shuffle(words)
        values[begin:end] = struct.pack(f"<{len(words)}H", *words)
    (out / "model.safetensors").write_bytes(data[: 8 + header_length] + values)


if __name__ == "__main__":
    main()
