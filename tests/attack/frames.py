"""A liar's end of the data plane: frames of lib/wire/xfer_frame.h whose header checksum is right whatever else is
wrong, and both lanes of a connection by the handshake of lib/xfer/handshake.h, with the proof of one who holds the key
set. Nothing here checks what it sends. Python standard library only, so the streams are never sealed."""

import hashlib
import hmac
import os
import socket
import struct

NAMES = "hello challenge proof ready refuse read data write ack notify describe share goodbye nics keys path_offer "
NAMES += "path_answer path_ready path_down path_rest heard landed immediate"
TYPES = {name: i + 1 for i, name in enumerate(NAMES.split())}
HEADER = struct.Struct("<IHBBQIIQQIIQI")  # all but the checksum
HEADER_BYTES = HEADER.size + 4
FRAME_MAGIC, DESCRIPTOR_MAGIC, VERSION = 0x4658434D, 0x4458434D, 3
HAS_CRC, HAS_IMMEDIATE, TOGETHER = 1, 2, 4  # flags
SEAL_NEVER = 0
PROOF_AT = 16 + 1 + 1 + 32 + 32  # of a challenge: instance, secured, seal, nonce, share

TABLE = []
for n in range(256):
    for _ in range(8):
        n = (n >> 1) ^ (0x82F63B78 if n & 1 else 0)
    TABLE.append(n)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 255] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def checked(data):
    return data + struct.pack("<I", crc32c(data))


def text(value):
    return struct.pack("<H", len(value)) + value


def frame(kind, payload=b"", magic=FRAME_MAGIC, version=VERSION, flags=0, number=0, buffer=0, snapshot=0, offset=0,
          length=None, status=0, payload_crc=0, reserved=0, immediate=0):
    """One frame. Its length is that of the payload unless the caller says another."""
    length = len(payload) if length is None else length
    return checked(HEADER.pack(magic, version, kind, flags, number, buffer, snapshot, offset, length, status,
                               payload_crc, reserved, immediate)) + payload


def hello(instance, wanted=bytes(16), connection=None, lane=0, lanes=2, secured=1, seal=SEAL_NEVER, name=b"liar"):
    """The payload of a dialler's first frame."""
    out = instance + wanted + (connection or os.urandom(16)) + struct.pack("<HHBB", lane, lanes, secured, seal)
    return out + os.urandom(32) + bytes(32) + text(name)


def challenge(instance, secured=0, seal=SEAL_NEVER, name=b"liar"):
    """The payload of a listener's first frame, without a proof."""
    return instance + struct.pack("<BB", secured, seal) + os.urandom(32) + bytes(32) + bytes(32) + text(name)


def descriptor(instance, version=1, name=b"liar", uris=(), buffers=()):
    """The offer of a process. A buffer: (id, access, shared, length, writer, name)."""
    out = struct.pack("<IHH", DESCRIPTOR_MAGIC, VERSION, 0) + instance + bytes(16) + struct.pack("<I", version)
    out += text(name) + struct.pack("<H", len(uris)) + b"".join(map(text, uris)) + struct.pack("<H", len(buffers))
    for number, access, shared, length, writer, buffer_name in buffers:
        out += struct.pack("<IBBQ", number, access, shared, length) + writer + text(buffer_name)
    return checked(out)


def buffers_of(data):
    """[(id, access, shared, length, writer, name)] of a descriptor."""
    at = 4 + 2 + 2 + 16 + 16 + 4

    def take(form):
        nonlocal at
        out = struct.unpack_from(form, data, at)
        at += struct.calcsize(form)
        return out

    def words():
        nonlocal at
        size = take("<H")[0]
        at += size
        return data[at - size : at]

    words()
    for _ in range(take("<H")[0]):
        words()
    return [(*take("<IBBQ"), *take("16s"), words()) for _ in range(take("<H")[0])]


def data_secret(path):
    """The secret that the programs of one key file prove to each other (host/key_file.cc)."""
    with open(path, "rb") as lines:
        words = dict(line.split() for line in lines if not line.startswith(b"#"))
    return hashlib.sha256(words[b"data-secret"]).digest()


def proof(secret, asked, challenge):
    """A dialler's proof, which covers both messages (xfer/auth.cc)."""
    unproven = challenge[:PROOF_AT] + bytes(32) + challenge[PROOF_AT + 32 :]
    fields = (b"mc-xfer-%d" % VERSION, b"dialler", asked, unproven)
    message = b"".join(struct.pack("<I", len(field)) + field for field in fields)
    return hmac.new(secret, message, hashlib.sha256).digest()


class Lane:
    """One socket, and the frames that come back on it."""

    def __init__(self, port, timeout=60):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)

    def send(self, data):
        self.socket.sendall(data)

    def _exactly(self, count):
        parts = []
        while count:
            part = self.socket.recv(min(count, 1 << 20))
            if not part:
                raise ConnectionError("closed by the peer")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def receive(self):
        """(type, number, status, payload) of the next frame."""
        head = self._exactly(HEADER_BYTES)
        kind, number, length, status = head[6], *struct.unpack_from("<Q", head, 8), *struct.unpack_from("<QI", head, 32)
        return kind, number, status, self._exactly(0 if kind == TYPES["read"] else length)

    def until_closed(self):
        """The types of all frames until the peer closes."""
        kinds = []
        try:
            while True:
                kinds.append(self.receive()[0])
        except ConnectionError:
            return kinds

    def challenged(self, asked):
        """Sends a hello; the payload of the challenge, or None when another answer comes or none."""
        try:
            self.send(frame(TYPES["hello"], asked))
            kind, _, _, payload = self.receive()
        except ConnectionError:
            return None
        return payload if kind == TYPES["challenge"] else None

    def close(self):
        self.socket.close()


class Member:
    """Both lanes of a connection by one who holds the secret. Where the listener refuses it, `ready` is false."""

    def __init__(self, port, secret, instance, version=1, told=None, numbers=(0, 1), count=2):
        """`told` in place of a right descriptor. `numbers`: those of the lanes, of `count`."""
        self.lanes, self.ready, self.buffers, self.instance, self.fences = [], False, [], instance, 1 << 62
        connection = os.urandom(16)
        try:
            for lane in numbers:
                one = Lane(port)
                self.lanes.append(one)
                asked = hello(instance, connection=connection, lane=lane, lanes=count)
                challenge = one.challenged(asked)
                if challenge is None:
                    return
                answer = proof(secret, asked, challenge)
                if lane == 0:
                    answer += descriptor(instance, version) if told is None else told
                one.send(frame(TYPES["proof"], answer))
                kind, _, _, payload = one.receive()
                if kind != TYPES["ready"]:
                    return
                if lane == 0:
                    self.buffers = buffers_of(payload)
        except ConnectionError:
            return
        self.ready = len(self.lanes) == count

    def fence(self):
        """Waits until the peer has taken all that was sent on the data lane; [(type, status)] of its answers to that. A
        peer that has closed raises ConnectionError."""
        self.fences += 1
        self.lanes[1].send(frame(TYPES["read"], number=self.fences, buffer=2**32 - 1, length=1))
        answers = []
        while True:
            kind, number, status, _ = self.lanes[1].receive()
            if number == self.fences:
                return answers
            answers.append((kind, status))

    def close(self):
        for lane in self.lanes:
            lane.close()
