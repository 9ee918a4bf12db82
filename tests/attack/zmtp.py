"""A liar's end of the control plane: ZMTP 3.0 (rfc.zeromq.org/spec/23) with the NULL mechanism over a Unix or TCP
socket, and as much msgpack as hostile messages need. Nothing here checks what it sends; that is the point."""

import os
import socket
import struct


class Raw(bytes):
    """Bytes that go into a msgpack document as they are."""


def pack(value):
    """msgpack of None, bool, int, float, str, bytes, list, dict and Raw."""
    if isinstance(value, Raw):
        return bytes(value)
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        if 0 <= value < 128:
            return bytes([value])
        return b"\xcf" + struct.pack(">Q", value) if value >= 0 else b"\xd3" + struct.pack(">q", value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        data = value.encode(errors="surrogateescape")
        return b"\xdb" + struct.pack(">I", len(data)) + data
    if isinstance(value, bytes):
        return b"\xc6" + struct.pack(">I", len(value)) + value
    if isinstance(value, (list, tuple)):
        return b"\xdd" + struct.pack(">I", len(value)) + b"".join(pack(each) for each in value)
    return b"\xdf" + struct.pack(">I", len(value)) + b"".join(pack(k) + pack(v) for k, v in value.items())


class Dealer:
    """A DEALER connection to "ipc:///path" or "tcp://host:port"."""

    def __init__(self, uri, timeout=10):
        if uri.startswith("ipc://"):
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.socket.settimeout(timeout)
            self.socket.connect(uri[6:])
        else:
            host, port = uri[6:].rsplit(":", 1)
            self.socket = socket.create_connection((host, int(port)), timeout)
        self.instance = os.urandom(16)
        self.last_id = 0
        self.socket.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
        self.greeting = self._take(64)
        ready = b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER" + b"\x08Identity" + bytes(4)
        self.socket.sendall(bytes([4, len(ready)]) + ready)

    def _take(self, size):
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise ConnectionError("closed by the peer")
            data += part
        return data

    def send_frames(self, *frames):
        """One message of any frames."""
        out = b""
        for i, frame in enumerate(frames):
            more = 1 if i + 1 < len(frames) else 0
            out += (
                bytes([more, len(frame)]) if len(frame) < 256 else bytes([more | 2]) + struct.pack(">Q", len(frame))
            ) + frame
        self.socket.sendall(out)

    def send(self, kind, body, **envelope):
        """A message with an envelope that is right but for what `envelope` says."""
        self.last_id += 1
        head = {"v": 1, "type": kind, "id": self.last_id, "from": "", "inst": self.instance, "epoch": 1}
        head.update(envelope)
        self.send_frames(pack({k: v for k, v in head.items() if v is not None}), pack(body))

    def drain(self):
        """Throws away what the peer has sent, so that its queue never fills."""
        self.socket.setblocking(False)
        try:
            while self.socket.recv(1 << 16):
                pass
        except BlockingIOError:
            pass
        finally:
            self.socket.settimeout(60)

    def close(self):
        self.socket.close()


def unpack(data, at=0):
    """(value, end) of the msgpack value at data[at]."""
    tag = data[at]
    at += 1

    def several(count, at):
        out = []
        for _ in range(count):
            value, at = unpack(data, at)
            out.append(value)
        return out, at

    def mapping(count, at):
        flat, at = several(2 * count, at)
        return dict(zip(flat[::2], flat[1::2])), at

    def sized(form):
        size = struct.calcsize(form)
        return struct.unpack_from(form, data, at)[0], at + size

    if tag < 0x80:
        return tag, at
    if tag >= 0xE0:
        return tag - 256, at
    if tag < 0x90:
        return mapping(tag & 15, at)
    if tag < 0xA0:
        return several(tag & 15, at)
    if tag < 0xC0:
        end = at + (tag & 31)
        return data[at:end].decode(errors="surrogateescape"), end
    if tag in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[tag], at
    numbers = {0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"}
    numbers |= {0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
    if tag in numbers:
        return sized(numbers[tag])
    count, at = sized({0: ">B", 1: ">H", 2: ">I"}[(tag - {0xC4: 0xC4, 0xD9: 0xD9, 0xDC: 0xDB, 0xDE: 0xDD}[
        0xC4 if tag < 0xC7 else 0xD9 if tag < 0xDC else 0xDC if tag < 0xDE else 0xDE
    ])])
    if tag < 0xC7:
        return data[at : at + count], at + count
    if tag < 0xDC:
        return data[at : at + count].decode(errors="surrogateescape"), at + count
    return several(count, at) if tag < 0xDE else mapping(count, at)
