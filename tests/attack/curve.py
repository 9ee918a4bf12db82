"""CURVE (rfc.zeromq.org/spec/26) as an attacker needs it: a client whose short-term keys the test knows, and attempts
to open recorded frames with keys that have leaked. The cryptography is libsodium's, which libzmq uses too."""

import base64
import ctypes
import functools
import itertools
import os
import struct
import unittest

from zmtp import greeting

Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
MAC = 16


@functools.cache  # a CDLL makes Python types of its own, which takes longer than a call
def sodium():
    """libsodium, or a skip where libzmq brings its own cryptography."""
    try:
        return ctypes.CDLL("libsodium.so.23")
    except OSError:
        raise unittest.SkipTest("no libsodium.so.23") from None


def key_set(path):
    """{name: 32 bytes} of a key file."""
    with open(path) as lines:
        words = [line.split() for line in lines if not line.startswith("#")]
    return {name: base64.b85decode(text.encode().translate(bytes.maketrans(Z85, B85))) for name, text in words}


def key_pair():
    """(public key, secret key), new."""
    public, secret = ctypes.create_string_buffer(32), ctypes.create_string_buffer(32)
    sodium().crypto_box_keypair(public, secret)
    return public.raw, secret.raw


class Box:
    """Seals and opens messages between two sides: `public` is a key of one, `secret` of the other."""

    def __init__(self, public, secret):
        self.key = ctypes.create_string_buffer(32)
        sodium().crypto_box_beforenm(self.key, public, secret)

    def seal(self, nonce, text):
        out = ctypes.create_string_buffer(len(text) + MAC)
        sodium().crypto_box_easy_afternm(out, text, ctypes.c_ulonglong(len(text)), nonce, self.key)
        return out.raw

    def open(self, nonce, box):
        """The text, or None: the keys are others."""
        out = ctypes.create_string_buffer(max(1, len(box) - MAC))
        size = ctypes.c_ulonglong(len(box))
        if len(box) < MAC or sodium().crypto_box_open_easy_afternm(out, box, size, nonce, self.key) != 0:
            return None
        return out.raw[: len(box) - MAC]


def open_cookie(key, nonce, box):
    """The text of a box under one secret key, or None."""
    out = ctypes.create_string_buffer(len(box))
    if sodium().crypto_secretbox_open_easy(out, box, ctypes.c_ulonglong(len(box)), nonce, key) != 0:
        return None
    return out.raw[: len(box) - MAC]


class Client:
    """The connecting side of CURVE over a socket, with all that it could leak."""

    def __init__(self, connected, keys):
        self.socket, self.count = connected, 0
        self.public, self.secret = key_pair()
        connected.sendall(greeting(b"CURVE"))
        self.take(64)
        hello = Box(keys["server-public"], self.secret).seal(b"CurveZMQHELLO---" + self.nonce(), bytes(64))
        at = struct.pack(">Q", self.count)
        self.send(4, b"\x05HELLO\x01\x00" + bytes(72) + self.public + at + hello)
        welcome = self.receive()
        text = Box(keys["server-public"], self.secret).open(b"WELCOME-" + welcome[8:24], welcome[24:])
        self.server, cookie = text[:32], text[32:]
        self.session = Box(self.server, self.secret)
        salt = os.urandom(16)
        vouch = Box(self.server, keys["client-secret"]).seal(b"VOUCH---" + salt, self.public + keys["server-public"])
        about = b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER" + b"\x08Identity" + bytes(4)
        box = self.session.seal(b"CurveZMQINITIATE" + self.nonce(), keys["client-public"] + salt + vouch + about)
        self.send(4, b"\x08INITIATE" + cookie + struct.pack(">Q", self.count) + box)
        self.receive()

    def nonce(self):
        self.count += 1
        return struct.pack(">Q", self.count)

    def take(self, size):
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise ConnectionError("closed by the peer")
            data += part
        return data

    def send(self, flags, body):
        head = bytes([flags, len(body)]) if len(body) < 256 else bytes([flags | 2]) + struct.pack(">Q", len(body))
        self.socket.sendall(head + body)

    def receive(self):
        flags = self.take(1)[0]
        return self.take(struct.unpack(">Q", self.take(8))[0] if flags & 2 else self.take(1)[0])

    def seal(self, flags, frame):
        nonce = self.nonce()
        self.send(0, b"\x07MESSAGE" + nonce + self.session.seal(b"CurveZMQMESSAGEC" + nonce, bytes([flags]) + frame))

    def say(self, *frames):
        """One message."""
        for i, frame in enumerate(frames):
            self.seal(1 if i + 1 < len(frames) else 0, frame)

    def command(self, body, more=False):
        """A command of ZMTP itself."""
        self.seal(3 if more else 2, body)


def name_of(frame):
    """The name of a frame of CURVE, such as b"HELLO"."""
    return frame[1 : 1 + frame[0]] if frame else b""


class Leak:
    """Tries to open a recorded connection with secret keys and with every public key that it finds on the way."""

    def __init__(self, secrets, publics):
        self.secrets, self.publics, self.opened = list(secrets), list(publics), {}

    def learn(self, name, text):
        self.opened.setdefault(name, []).append(text)
        return text

    def attempt(self, name, prefix, short, box):
        """Opens one box with any pair of keys that is known."""
        for public, secret in itertools.product(self.publics, self.secrets):
            text = Box(public, secret).open(prefix + short, box)
            if text is not None:
                return self.learn(name, text)
        return None

    def run(self, to, back):
        """`to` and `back` are the frames of the two directions. Returns {name: texts} of those that open."""
        hello, welcome = to[0], back[0]
        self.publics.append(hello[80:112])
        self.attempt(b"HELLO", b"CurveZMQHELLO---", hello[112:120], hello[120:])
        text = self.attempt(b"WELCOME", b"WELCOME-", welcome[8:24], welcome[24:])
        if text:
            self.publics.append(text[:32])
            for key in self.secrets:  # the cookie has the short-term secret key of the server
                cookie = open_cookie(key, b"COOKIE--" + text[32:48], text[48:])
                if cookie is not None:
                    self.secrets.append(self.learn(b"COOKIE", cookie)[32:])
                    break
        self.attempt(b"INITIATE", b"CurveZMQINITIATE", to[1][105:113], to[1][113:])
        self.attempt(b"READY", b"CurveZMQREADY---", back[1][6:14], back[1][14:])
        for side, frames in ((b"C", to[2:]), (b"S", back[2:])):
            for frame in frames:
                self.attempt(b"MESSAGE", b"CurveZMQMESSAGE" + side, frame[8:16], frame[16:])
        return self.opened
