"""Groups of values as bytes, for tests that make those which mc-cache does not make. mc-cache(1) has the form."""

import struct


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def group(members):
    """The value of the group with these members, bytes by name (bytes, too). No name is checked."""
    rows = sorted(members.items())
    directory = b"".join(struct.pack("<QIHH", len(value), crc32c(value), len(name), 0) + name for name, value in rows)
    head = struct.pack("<4sHHII", b"MVGr", 1, 0, len(rows), len(directory))
    head += struct.pack("<II", crc32c(head + bytes(8) + directory), 0)
    return head + directory + b"".join(value for _, value in rows)
