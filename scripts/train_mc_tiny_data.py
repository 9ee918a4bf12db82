"""Text, tokenizer and generated tasks of train-mc-tiny."""

import hashlib
import json
import random
import re
from pathlib import Path

import numpy as np

VOCAB = 2048
SPECIAL = ["<|bos|>", "<|eos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>",
           "<|tool|>", "<|pad|>"]
BOS, EOS, END = 0, 1, 2
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}")
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
         r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

# ---------------------------------------------------------------- text, tokenizer


def load_text(folder):
    """The paragraphs of every .txt file, unwrapped, and a list of (name, sha256, chars)."""
    paragraphs, sources = [], []
    for path in sorted(Path(folder).glob("*.txt")):
        raw = path.read_bytes()
        text = raw.decode("utf-8", "replace").replace("\r\n", "\n")
        text = re.sub(r"(?s)^.*?\*\*\* ?START OF TH[^\n]*(\n[^\n]+)*\n", "", text)
        text = re.sub(r"(?s)\*\*\* ?END OF TH.*", "", text)
        text = re.sub(r"(?s)End of (the )?Project Gutenberg.*", "", text)
        found = [re.sub(r"\s+", " ", p).strip() for p in re.split(r"\n\s*\n", text)]
        found = [p for p in found if len(p) > 40 and "Gutenberg" not in p]
        paragraphs += found
        sources.append((path.name, hashlib.sha256(raw).hexdigest(), sum(map(len, found))))
    return paragraphs, sources


def train_tokenizer(paragraphs, folder):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from tokenizers import processors, trainers
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, show_progress=False,
        special_tokens=[AddedToken(s, special=True, normalized=False) for s in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    rng = random.Random(1)
    words = word_pool(paragraphs)
    tasks = [make(rng, paragraphs, words, 900) for _ in range(300)
             for make in (passkey_text, kv_text, chat_text)]
    tok.train_from_iterator(paragraphs + ["".join(p for p, _ in t) for t in tasks], trainer)
    tok.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A", pair="<|bos|> $A $B", special_tokens=[("<|bos|>", BOS)])
    folder.mkdir(parents=True, exist_ok=True)
    tok.save(str(folder / "tokenizer.json"))
    added = {str(i): dict(content=s, lstrip=False, normalized=False, rstrip=False,
                          single_word=False, special=True) for i, s in enumerate(SPECIAL)}
    names = dict(bos_token="<|bos|>", eos_token="<|end|>", pad_token="<|pad|>")
    write_json(folder / "special_tokens_map.json", names)
    write_json(folder / "tokenizer_config.json", dict(
        added_tokens_decoder=added, **names, chat_template=CHAT_TEMPLATE,
        additional_special_tokens=[s for s in SPECIAL if s not in names.values()],
        clean_up_tokenization_spaces=False, model_max_length=8192,
        tokenizer_class="PreTrainedTokenizerFast"))


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


# ------------------------------------------------------------------------- tasks
#
# A task is a list of (text, kind): kind "a" is an answer, "t" running text, "x" the context
# of a task; tokens that nothing foretells are "0".


NAMES = ["secret number", "access code", "door code", "magic number", "password", "pin code"]
GRASS = ("The grass is green. The sky is blue. The sun is yellow. Here we go. "
         "There and back again. ")
COLOURS = "red blue green yellow black white brown grey golden silver".split()
PEOPLE = "Anna Peter Mary John Lucy Tom Alice George Clara Henry Emma Jack Rose Paul".split()
THINGS = "ball hat coat box book cup chair door horse boat lamp ring key bag".split()
PLACES = "London Paris Rome the-garden the-kitchen the-forest Boston Vienna the-harbour".split()


def word_pool(paragraphs):
    count = {}
    for p in paragraphs[::3]:
        for w in re.findall(r"\b[a-z]{4,8}\b", p):
            count[w] = count.get(w, 0) + 1
    return sorted(w for w, n in count.items() if n >= 12)


def digits(rng, n=None):
    return "".join(rng.choice("0123456789") for _ in range(n or rng.choice([3, 4, 5, 5, 5, 5, 6, 7])))


def sentences(rng, paragraphs, chars):
    """About `chars` characters of filler as a list of sentences."""
    out, size, style = [], 0, rng.random()
    at = rng.randrange(len(paragraphs))
    while size < chars:
        if style < 0.25:
            piece = GRASS
            found = re.findall(r".*?\. ", piece)
        else:
            if style > 0.75:
                at = rng.randrange(len(paragraphs))
            found = re.findall(r".*?[.!?]['\"]* |.+$", paragraphs[at % len(paragraphs)] + " ")
            at += 1
        for s in found:
            out.append(s)
            size += len(s)
            if size >= chars:
                break
    return out


def passkey_text(rng, paragraphs, words, chars):
    filler = sentences(rng, paragraphs, max(20, chars - 60))
    count = rng.choice([1, 1, 2, 3] if chars < 700 else [1, 2, 4] if chars < 2500 else [1, 2, 4, 8])
    names = ["pass key"] if rng.random() < 0.7 else [rng.choice(NAMES)]
    while len(names) < count:
        name = rng.choice(words) + rng.choice([" code", " key", " number"])
        if name not in names:
            names.append(name)
    needles = [(n, digits(rng)) for n in names]
    out = []
    at = sorted((rng.randrange(len(filler) + 1), i) for i in range(count))
    done = 0
    for where, i in at:
        out.append(("".join(filler[done:where]), "x"))
        done = where
        name, number = needles[i]
        form = rng.random()
        if form < 0.5:
            out.append((f"The {name} is {number}. Remember it. ", "x"))
        elif form < 0.8:
            out.append((f"The {name} is {number}. Remember it.", "x"))
            out.append((f" {number}", "a"))
            out.append((f" is the {name}. ", "x"))
        else:
            out.append((rng.choice(["Note that the ", "Remember: the "]) + f"{name} is {number}. ",
                        "x"))
    out.append(("".join(filler[done:]), "x"))
    rng.shuffle(needles)
    for name, number in needles:
        out.append((f"\nWhat is the {name}? The {name} is", "x"))
        out.append((f" {number}.", "a"))
    return out


def kv_text(rng, paragraphs, words, chars):
    style = rng.randrange(3)
    key = (lambda: rng.choice(words)) if style < 2 else (
        lambda: rng.choice(words) + "_" + digits(rng, 2))
    value = (lambda: digits(rng)) if rng.random() < 0.6 else (lambda: rng.choice(words))
    pairs, size = {}, 0
    while size < chars * 0.8:
        k, v = key(), value()
        pairs[k] = v
        size += len(k) + len(v) + 3
    asked = rng.sample(sorted(pairs), min(len(pairs), max(2, int(chars * 0.2 / (size / len(pairs))))))
    out = [("".join(f"{k}: {v}\n" for k, v in pairs.items()) + "\nRecall:\n", "x")]
    for k in asked:
        out += [(f"{k}:", "x"), (f" {pairs[k]}\n", "a")]
    return out


def chat_text(rng, paragraphs, words, chars):
    """One or more turns of conversation."""
    def turn(user, answer, lead=""):
        return [(f"<|user|>\n{user}<|end|>\n<|assistant|>\n{lead}", "x"),
                (answer, "a"), ("<|end|>\n", "a")]
    out = []
    if rng.random() < 0.4:
        out.append(("<|system|>\n" + rng.choice([
            "You are a helpful assistant.", "Answer shortly.", "You are mc-tiny."]) + "<|end|>\n", "x"))
    used = 0
    while True:
        kind = rng.randrange(6)
        if kind == 0:                                                     # passkey
            room = max(40, chars - used - 120)
            filler = sentences(rng, paragraphs, room if rng.random() < 0.7 else min(room, 300))
            number, name = digits(rng), "pass key" if rng.random() < 0.7 else rng.choice(NAMES)
            filler.insert(rng.randrange(len(filler) + 1), f"The {name} is {number}. Remember it. ")
            out += turn("".join(filler) + f"\nWhat is the {name}?", f"The {name} is {number}.")
        elif kind == 1:                                                   # repeat
            if rng.random() < 0.5:
                said = " ".join(rng.choice(words) for _ in range(rng.randint(2, 12)))
            else:
                said = "".join(sentences(rng, paragraphs, min(200, max(20, chars // 3)))).strip()
            out += turn(f"Repeat after me: {said}", said)
        elif kind in (2, 3):                                              # facts in the context
            n = rng.randint(1, 6)
            who = rng.sample(PEOPLE, n)
            what = [(w, rng.choice(THINGS), rng.choice(COLOURS), rng.choice(PLACES).replace("-", " "))
                    for w in who]
            if kind == 2:
                facts = " ".join(f"{w} has a {c} {t}." for w, t, c, _ in what)
                w, t, c, _ = rng.choice(what)
                out += turn(f"{facts} What colour is the {t} of {w}?", f"The {t} of {w} is {c}.")
            else:
                facts = " ".join(f"{w} is in {p}." for w, _, _, p in what)
                w, _, _, p = rng.choice(what)
                out += turn(f"{facts} Where is {w}?", f"{w} is in {p}.")
        elif kind == 4:                                                   # remember, ask later
            number, name = digits(rng), rng.choice(NAMES + ["pass key"])
            out += turn(f"The {name} is {number}. Remember it.", "I will remember it.")
            if rng.random() < 0.5:
                said = " ".join(rng.choice(words) for _ in range(rng.randint(2, 6)))
                out += turn(f"Repeat after me: {said}", said)
            out += turn(f"What is the {name}?", f"The {name} is {number}.")
        else:                                                             # key-value list
            n = max(2, min(rng.randint(2, 40), int(chars - used) // 20))
            pairs = {rng.choice(words): digits(rng) for _ in range(n)}
            k = rng.choice(sorted(pairs))
            rows = "\n".join(f"{a}: {b}" for a, b in pairs.items())
            out += turn(f"{rows}\nWhat is {k}?", f"{k}: {pairs[k]}")
        used = sum(len(p) for p, _ in out)
        if used > chars * 0.7:
            return out


class Data:
    """Token sequences of the tasks, with a loss weight for each token."""

    def __init__(self, folder, model_dir):
        from tokenizers import Tokenizer
        self.paragraphs, self.sources = load_text(folder)
        self.held_out = self.paragraphs[::50]
        self.paragraphs = [p for i, p in enumerate(self.paragraphs) if i % 50]
        self.words = word_pool(self.paragraphs)
        if not (model_dir / "tokenizer.json").exists():
            train_tokenizer(self.paragraphs, model_dir)
        self.tok = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        probe = "\n".join(self.paragraphs[:2000])
        self.chars_per_token = len(probe) / len(self.encode(probe))

    def encode(self, text):
        return self.tok.encode(text, add_special_tokens=False).ids

    def weigh(self, pieces):
        """Tokens and kinds of a task; a token has the kind of its last character."""
        enc = self.tok.encode("".join(p for p, _ in pieces), add_special_tokens=False)
        kinds = np.concatenate([np.full(len(p), ord(k), np.uint8) for p, k in pieces if p])
        ends = np.array([e for _, e in enc.offsets]) - 1
        return np.array(enc.ids), kinds[ends]

    def copy(self, rng, n):
        """Random tokens, or text, of which spans come again."""
        if rng.random() < 0.35:
            text = self.encode("".join(sentences(rng, self.paragraphs, n * 2)))[:n // 2]
            ids = np.array(text + text)
            kinds = np.full(len(ids), ord("a"), np.uint8)
            kinds[:len(text)] = ord("t")
        else:
            period = rng.randint(max(4, n // 16), max(8, n // 2 - 1))
            span = np.array([rng.randrange(8, VOCAB) for _ in range(period)])
            if rng.random() < 0.3:
                span = np.array(self.encode("1234567890"))[span % 10]
            ids = np.tile(span, 1 + n // period)[:n]
            kinds = np.full(n, ord("a"), np.uint8)
            kinds[:period + 1] = ord("0")
        return ids, kinds

    def row(self, rng, task, n):
        """n + 1 tokens and kinds of a task; short ones are followed by more of them."""
        ids, kinds = np.array([BOS]), np.array([ord("0")], np.uint8)
        while len(ids) <= n:
            room = n + 1 - len(ids)
            if task == "text" or (room < 48 and len(ids) > 1):
                at = rng.randrange(len(self.paragraphs))
                i = self.encode("\n\n".join(self.paragraphs[at:at + 2 + room // 40]) + "\n\n")
                i, k = np.array(i), np.full(len(i), ord("t"), np.uint8)
            elif task == "copy":
                i, k = self.copy(rng, min(room - 1, rng.randint(48, 640)))
            else:
                make = dict(passkey=passkey_text, kv=kv_text, chat=chat_text)[task]
                part = room if task == "passkey" or rng.random() < 0.5 else max(60, room // 2)
                chars = part * (2.2 if task == "kv" else self.chars_per_token * 0.97) - 80
                for _ in range(8):
                    i, k = self.weigh(make(rng, self.paragraphs, self.words, max(40, chars)))
                    if len(i) < room:
                        break
                    chars *= 0.9 * room / len(i)
                else:
                    i, k = i[:0], k[:0]
                    task = "text"
            ids = np.concatenate((ids, i, [EOS] if task == "text" else []))
            kinds = np.concatenate((kinds, k, [ord("t")] if task == "text" else [])).astype(np.uint8)
        return ids[:n + 1].astype(np.int64), kinds[:n + 1]

    def batch(self, rng, mix, n, tokens):
        """Tokens, kinds and the rows' tasks."""
        tasks = rng.choices(*zip(*mix.items()), k=max(1, tokens // n))
        rows = [self.row(rng, t, n) for t in tasks]
        return np.stack([r[0] for r in rows]), np.stack([r[1] for r in rows]), tasks


# ------------------------------------------------------------- prompts of the evaluation


def passkey_prompt(data, rng, n):
    """Tokens of a passkey prompt of at most n tokens, and those of its answer (held-out text)."""
    number = digits(rng, 5)
    needle = f"The pass key is {number}. Remember it. "
    tail = "\nWhat is the pass key? The pass key is"
    budget = n - len(data.encode(needle + tail)) - 8
    filler, size = [], 0
    for s in sentences(rng, data.held_out, n * data.chars_per_token * 1.5):
        size += len(data.encode(s))
        if size > budget:
            break
        filler.append(s)
    filler.insert(rng.randrange(len(filler) + 1), needle)
    return [BOS] + data.encode("".join(filler) + tail), data.encode(f" {number}.")


def kv_prompt(data, rng, n):
    pairs, size = {}, 0
    while size < n - 24:
        k, v = rng.choice(data.words), digits(rng, 5)
        if k not in pairs:
            pairs[k] = v
            size += len(data.encode(f"{k}: {v}\n"))
    k = rng.choice(sorted(pairs))
    return ([BOS] + data.encode("".join(f"{a}: {b}\n" for a, b in pairs.items()) + f"\nRecall:\n{k}:"),
            data.encode(f" {pairs[k]}\n"))
