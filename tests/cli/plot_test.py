"""mc-bench plot: what it takes from result files, and that no text in them reaches gnuplot as anything but text."""

import json
import os
import shutil
import tempfile
import unittest
import xml.etree.ElementTree

import cluster


def plot(*words, stdin=b""):
    code, out, err = cluster.run("mc-bench", "plot", *words, stdin=stdin)
    return code, out if isinstance(out, str) else out.decode(), err


def series(rows, *words):
    """The series of --json: name to points."""
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    code, out, err = plot("-", "--json", *words, stdin=text)
    assert code == 0, f"{words}: exit {code}: {err}"
    return {one["name"]: one["points"] for one in json.loads(out.splitlines()[-1])["series"]}


def script(rows, *words):
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    code, out, err = plot("-", "--gnuplot", "-", *words, stdin=text)
    assert code == 0, f"{words}: exit {code}: {err}"
    return out


class Series(unittest.TestCase):
    def test_lines_part_by_what_differs_in_words_and_sort_by_x(self):
        rows = [
            {"policy": p, "schema": "s", "rate": r, "p99": p99}
            for p, r, p99 in (("load", 2, 30), ("kv", 2, 9), ("load", 1, 10), ("kv", 1, 5))
        ]
        found = series(rows, "--x", "rate", "--y", "p99")
        self.assertEqual(found, {"load": [[1, 10], [2, 30]], "kv": [[1, 5], [2, 9]]})
        self.assertEqual(list(series(rows, "--x", "rate", "--y", "p99", "--by", "none")), ["p99"])
        self.assertEqual(series(rows, "--x", "rate", "--y", "p99", "--where", "policy=kv"), {"p99": found["kv"]})

    def test_lines_at_one_x_are_drawn_as_their_median(self):
        rows = [{"x": 1, "y": y} for y in (7, 1, 100)] + [{"x": 2, "y": y} for y in (4, 8)]
        self.assertEqual(series(rows, "--x", "x", "--y", "y"), {"y": [[1, 7], [2, 6]]})
        self.assertIn("yerrorbars", script(rows, "--x", "x", "--y", "y"))

    def test_the_frame_holds_the_goal_and_axes_are_in_words(self):
        rows = [{"request_rate": x, "p99_ttft_ms": 10 * x} for x in (1, 2, 3)]
        words = ["--x", "request_rate", "--y", "p99_ttft_ms", "--slo", "500"]
        text = script(rows, *words)
        for line in ("set yrange [0:500.0<*]", "set xlabel 'request rate'", "set ylabel 'p99 TTFT (ms)'"):
            self.assertIn(line + (" noenhanced\n" if "label" in line else "\n"), text)
        self.assertIn("set yrange [*<500.0:500.0<*]", script(rows, *words, "--log", "y"))
        self.assertIn("set xrange [*<5.0:5.0<*]", script(rows, "--cdf", "p99_ttft_ms", "--slo", "5"))

    def test_keys_inside_keys_and_arrays_against_arrays(self):
        row = {"t": {"s": [0, 1, 2]}, "queue": {"p0": [3, 1, 2]}}
        self.assertEqual(series([row], "--x", "t.s", "--y", "queue.p0"), {"queue.p0": [[0, 3], [1, 1], [2, 2]]})
        row["t"]["s"].append(3)
        code, _, err = plot("-", "--x", "t.s", "--y", "queue.p0", stdin=json.dumps(row).encode())
        self.assertEqual(code, 2)
        self.assertIn("t.s has 4 elements and queue.p0 has 3", err)

    def test_a_distribution_is_the_share_at_or_below(self):
        found = series([{"ttfts": [3, 1]}, {"ttfts": [2, None, 4]}], "--cdf", "ttfts")
        self.assertEqual(found, {"ttfts": [[1, 0], [1, 0.25], [2, 0.5], [3, 0.75], [4, 1]]})
        self.assertEqual(series([{"itls": [[5], [6]]}], "--cdf", "itls")["itls"][-1], [6, 1])

    def test_a_distribution_of_many_values_keeps_its_ends_and_few_points(self):
        found = series([{"v": list(range(100_000))}], "--cdf", "v")["v"]
        self.assertLess(len(found), 1_100)
        self.assertEqual((found[0], found[-1]), ([99, 0] if found[0][0] else [0, 0], [99_999, 1]))
        for value, share in found[1:]:
            self.assertAlmostEqual(share, (value + 1) / 100_000, delta=1e-9)

    def test_where_points_are_the_line_that_repeats_them_is_passed_over(self):
        points = [{"type": "point", "x": x, "y": x} for x in (1, 2)]
        found = series(points + [{"type": "result", "x": 3, "y": 3}], "--x", "x", "--y", "y")
        self.assertEqual(found, {"y": [[1, 1], [2, 2]]})

    def test_a_folder_stands_for_its_result_files(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, x in (("b.json", 2), ("a.jsonl", 1), ("notes.txt", 3)):
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write(json.dumps({"x": x, "y": x}) + "\n")
            code, out, _ = plot(folder, "--json", "--x", "x", "--y", "y")
            self.assertEqual(code, 0)
            self.assertEqual(json.loads(out)["series"][0]["points"], [[1, 1], [2, 2]])

    def test_what_cannot_be_plotted_is_refused_by_name(self):
        row = json.dumps({"rate": 1, "p99": 2}).encode()
        lists = json.dumps({"argv": ["serve"], "errors": [], "itls": [[1, 2]], "rate": [1]}).encode()
        many = "".join(json.dumps({"a": str(i % 40), "x": i, "y": i}) + "\n" for i in range(400)).encode()
        for words, stdin, needle in (
            (["--x", "nope", "--y", "p99"], row, "keys with numbers: p99 rate"),
            (["--x", "nope", "--y", "rate"], lists, "keys with numbers: rate\n"),
            (["--cdf", "nope"], lists, "keys with numbers: itls rate\n"),
            (["--y", "p99"], row, "--x KEY"),
            (["--x", "rate", "--y", "p99", "--cdf", "p99"], row, "--cdf has no --x"),
            (["--x", "rate", "--y", "p99", "--where", "rate"], row, "KEY=VALUE"),
            (["--x", "rate", "--y", "p99"], row + b"\n{", "-:2"),
            (["--x", "rate", "--y", "p99"], b"[1]", "holds no object but array"),
            (["--x", "x", "--y", "y", "--by", "a"], many, "more than 32 series"),
        ):
            with self.subTest(words=words):
                code, _, err = plot("-", *words, stdin=stdin)
                self.assertEqual(code, 2)
                self.assertIn(needle, err)


class Figures(unittest.TestCase):
    HOSTILE = "it's `touch HIT` $(touch HIT) \"@x\" \n!touch HIT\nsystem('touch HIT')"

    def test_texts_of_a_file_stay_texts(self):
        rows = [{"policy": name, "x": 1, "y": 1} for name in (self.HOSTILE[:38], "plain")]
        out = script(rows, "--x", "x", "--y", "y", "--title", self.HOSTILE)
        for line in out.splitlines():
            self.assertRegex(line, r"^(\$s\d+ << END|END|[-0-9. e]+|set |plot | +\$s)")
        self.assertIn("'it''s `touch HIT`", out)

    @unittest.skipUnless(shutil.which("gnuplot"), "gnuplot is not installed")
    def test_the_picture_is_one_svg_and_the_same_every_time(self):
        rows = [{"policy": name, "x": x, "y": x * x} for name in (self.HOSTILE[:38], "b") for x in (1, 2, 3)]
        text = "".join(json.dumps(row) + "\n" for row in rows).encode()
        with tempfile.TemporaryDirectory() as folder:
            before = os.getcwd()
            os.chdir(folder)
            try:
                pictures = []
                for name in ("one.svg", "two.svg"):
                    code, _, err = plot(
                        "-", "--x", "x", "--y", "y", "--slo", 4, "--title", self.HOSTILE, "--svg", name, stdin=text
                    )
                    self.assertEqual(code, 0, err)
                    with open(name, "rb") as file:
                        pictures.append(file.read())
                self.assertEqual(sorted(os.listdir(folder)), ["one.svg", "two.svg"])
            finally:
                os.chdir(before)
        self.assertEqual(pictures[0], pictures[1])
        root = xml.etree.ElementTree.fromstring(pictures[0])
        self.assertTrue(root.tag.endswith("svg"))
        self.assertNotIn(b"<script", pictures[0])
        self.assertNotIn(b"<image", pictures[0])

    @unittest.skipUnless(shutil.which("gnuplot"), "gnuplot is not installed")
    def test_without_a_file_it_draws_letters(self):
        code, out, _ = plot("-", "--cdf", "v", stdin=json.dumps({"v": [1, 2, 3]}).encode())
        self.assertEqual(code, 0)
        self.assertIn("share", out)
        self.assertLess(max(map(len, out.splitlines())), 80)

    def test_without_gnuplot_the_error_says_what_to_install(self):
        path, os.environ["PATH"] = os.environ["PATH"], "/nowhere"
        try:
            code, _, err = plot("-", "--cdf", "v", stdin=b'{"v":[1]}')
        finally:
            os.environ["PATH"] = path
        self.assertEqual(code, 1)
        self.assertIn("MC8007", err)
        self.assertIn("gnuplot-nox", err)


if __name__ == "__main__":
    unittest.main()
