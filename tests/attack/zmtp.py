"""A liar's ends of the control plane: ZMTP 3.0 (rfc.zeromq.org/spec/23) with the NULL mechanism over a Unix or TCP
socket, and as much msgpack as hostile messages need. Nothing here checks what it sends; that is the point."""

import os
import select
import socket
import struct
import time


def greeting(mechanism):
    """The first 64 bytes of a connection."""
    return b"\xff" + bytes(8) + b"\x7f\x03\x00" + mechanism.ljust(20, b"\0") + bytes(32)


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


class Connection:
    """One end of a connected socket: `kind` is its ZMTP socket type."""

    def __init__(self, connected, kind, instance=None):
        self.socket = connected
        self.instance = instance or os.urandom(16)
        self.last_id = 0
        self.buffer = b""
        self.peer = b""  # instance of the sender of the last message
        self.socket.sendall(greeting(b"NULL"))
        self.greeting = self._take(64)
        ready = b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind + b"\x08Identity" + bytes(4)
        self.socket.sendall(bytes([4, len(ready)]) + ready)

    def _take(self, size):
        while len(self.buffer) < size:
            part = self.socket.recv(1 << 16)
            if not part:
                raise ConnectionError("closed by the peer")
            self.buffer += part
        data, self.buffer = self.buffer[:size], self.buffer[size:]
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

    def command(self, body, more=False):
        """A command of ZMTP itself."""
        self.socket.sendall(bytes([5 if more else 4, len(body)]) + body)

    def send(self, kind, body, **envelope):
        """A message with an envelope that is right but for what `envelope` says."""
        self.last_id += 1
        head = {"v": 1, "type": kind, "id": self.last_id, "from": "", "inst": self.instance, "epoch": 1}
        head.update(envelope)
        self.send_frames(pack({k: v for k, v in head.items() if v is not None}), pack(body))

    def receive(self):
        """(type, body) of the next message; None is the body of one without."""
        frames, more = [], True
        while more:
            flags = self._take(1)[0]
            data = self._take(struct.unpack(">Q", self._take(8))[0] if flags & 2 else self._take(1)[0])
            if not flags & 4:  # no command of ZMTP itself
                frames.append(data)
                more = flags & 1
        head = unpack(frames[0])[0]
        self.peer = head["inst"]
        return head["type"], unpack(frames[1])[0] if frames[1] else None

    def waits(self, seconds):
        """Whether something can be received, now or within so many seconds."""
        return bool(self.buffer) or bool(select.select([self.socket], [], [], seconds)[0])

    def receive_any(self, kinds, seconds=60):
        """The next message of these types; the ones before it are dropped."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            kind, body = self.receive()
            if kind in kinds:
                return kind, body
        raise AssertionError(f"no {kinds} within {seconds} s")

    def drain(self):
        """Throws away what the peer has sent, so that its queue never fills. No message can be received afterwards."""
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


class Dealer(Connection):
    """A DEALER connection to "ipc:///path" or "tcp://host:port"."""

    def __init__(self, uri, timeout=60, instance=None):
        if uri.startswith("ipc://"):
            connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connected.settimeout(timeout)
            connected.connect(uri[6:])
        else:
            host, port = uri[6:].rsplit(":", 1)
            connected = socket.create_connection((host, int(port)), timeout)
        super().__init__(connected, b"DEALER", instance)


class Router:
    """Listens on a Unix path as the control socket of a conductor or of a node does."""

    def __init__(self, path, timeout=60):
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(path)
        self.listener.listen(16)
        self.listener.settimeout(timeout)
        self.timeout = timeout

    def waits(self):
        """Whether a connection can be accepted."""
        return bool(select.select([self.listener], [], [], 0)[0])

    def accept(self, instance):
        """The next connection, which speaks for `instance`."""
        connected = self.listener.accept()[0]
        connected.settimeout(self.timeout)
        return Connection(connected, b"ROUTER", instance)

    def close(self):
        self.listener.close()


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
