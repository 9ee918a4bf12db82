"""mc-bench trace: known figures of the public traces, to the last printed digit."""

import os
import sys
import unittest

import cluster
from sim_cases import PUBLIC, TRACES, digits, trace

PERCENTILES = "p1 p5 p10 p25 p50 p75 p90 p95 p99 p99.9"


class Published(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.conversation = trace("stats", PUBLIC["conversation"])
        cls.synthetic = trace("stats", PUBLIC["synthetic"])

    def check(self, found, keys, printed):
        """Members by dotted names, against figures as they are printed."""
        keys, printed = keys.split(), printed.split()
        self.assertEqual(len(keys), len(printed))
        values = []
        for key in keys:
            value = found
            for part in key.split("/"):
                value = value[int(part)] if isinstance(value, list) else value[part]
            values.append(value)
        self.assertEqual(dict(zip(keys, map(digits, values, printed))), dict(zip(keys, printed)))

    def both(self, keys, conversation, synthetic):
        self.check(self.conversation, keys, conversation)
        self.check(self.synthetic, keys, synthetic)

    def test_arrivals(self):
        self.both("requests arrivals/first_ms arrivals/last_ms", "12031 0 3536999", "3993 0 1022025")
        self.both("arrivals/distinct_timestamps arrivals/rate_per_s", "1180 3.4015", "3982 3.9069")
        keys = "arrivals/mean_at_one_instant arrivals/max_at_one_instant"
        self.check(self.conversation, keys, "10.2 28")
        self.assertEqual(digits(100 * self.conversation["arrivals"]["gap_zero_share"], "90.2"), "90.2")
        self.both("arrivals/gap_mean_ms arrivals/gap_std_ms", "294.0 892", "256.0 258.9")
        self.both("arrivals/gap_cv", "3.03", "1.011")
        second, ten, minute = (f"arrivals/windows/{i}/" for i in range(3))
        self.both(f"{second}mean {second}max", "3.40 28", "3.90 13")
        self.both(f"{ten}mean {ten}min {ten}max", "34.0 14 67", "38.8 21 55")
        self.both(f"{minute}mean {minute}min {minute}max {minute}std", "203.9 144 247 24.1", "221.8 208 273 53.7")
        counts = self.conversation["arrivals"]["windows"][3]["counts"]
        self.assertEqual(counts, [918, 832, 978, 930, 1007, 1054, 1039, 1093, 1089, 1103, 1104, 884])

    def test_lengths(self):
        def row(name, keys):
            return " ".join(f"{name}/{key}" for key in keys.split())

        self.both(row("input_tokens", "total mean"), "144793823 12035.06", "61194628 15325.48")
        self.both(
            row("input_tokens", PERCENTILES + " max min"),
            "894 901 964 2306 6909 15368 27367 39552 85401 121301 126195 891",
            "16 22 30 277 11587 23175 38615 49009 66458 191374 191378 13",
        )
        self.both(row("output_tokens", "total mean"), "4122048 342.62", "595432 149.12")
        self.both(
            row("output_tokens", PERCENTILES + " max"),
            "3 10 24 156 350 472 597 698 1120 2000 2000",
            "2 2 4 11 69 250 389 519 769 825 893",
        )
        self.check(self.conversation, "output_tokens/min", "1")
        self.both("input_tokens_per_s output_tokens_per_s", "40937 1165", "59876 583")
        self.both("input_output_ratio input_output_ratio_mean", "35.13 371.3", "102.77 2045.7")
        self.both(row("blocks", "total mean max"), "288500 23.98 247", "121877 30.52 374")
        blocks = ["2 2 2 5 14 31 54 78 167 237", "1 1 1 1 23 46 76 96 130 374"]
        self.both(row("blocks", PERCENTILES), *blocks)
        self.both("popularity/unique_blocks inputs_of_whole_blocks", "182790 22", "43924 4")

    def test_endless_cache(self):
        keys = "hit_blocks block_hit hit_tokens token_hit mean_request_token_hit requests_hit requests_fully_known"
        keys = " ".join("ideal/" + key for key in keys.split())
        self.both(keys, "105710 .3664 54098411 .3736 .4094 12030 118", "77953 .6396 39852661 .6512 .4315 1782 213")
        self.both("ideal/requests_hit_one_block ideal/requests_hit_more", "7372 4658", "34 1748")
        keys = " ".join(f"ideal/request_token_hit_p{q}" for q in (10, 25, 50, 75, 90))
        self.both(keys, ".028 .069 .363 .712 .948", "0 0 0 .977 .994")
        keys = "ideal/requests_at_least_half ideal/requests_at_least_90_percent"
        self.both(keys, ".425 .159", ".443 .423")
        self.assertEqual(
            [round(v, 3) for v in self.conversation["ideal"]["token_hit_per_5_minutes"]],
            [0.207, 0.374, 0.349, 0.368, 0.401, 0.387, 0.384, 0.395, 0.385, 0.416, 0.413, 0.413],
        )
        windows = [round(v, 3) for v in self.synthetic["ideal"]["token_hit_per_5_minutes"]]
        self.assertEqual(windows, [0.174, 0.534, 0.852, 0.975])

    def test_checkpoints(self):
        keys = ["requests", "hit_blocks", "blocks", "hit_tokens", "tokens", "unique_blocks"]
        found = lambda s: [[row[key] for key in keys] for row in s["checkpoints"]]
        self.assertEqual(
            found(self.conversation),
            [
                [10, 9, 228, 4608, 113177, 219],
                [100, 99, 3034, 50688, 1524742, 2935],
                [1000, 5791, 27305, 2962776, 13732944, 21514],
                [2000, 15771, 54559, 8070959, 27441774, 38788],
                [3000, 25332, 80619, 12964863, 40550180, 55287],
                [5000, 43319, 129968, 22170900, 65330959, 86649],
                [10000, 86887, 241898, 44468253, 121427260, 155011],
            ],
        )
        self.assertEqual(
            found(self.synthetic),
            [
                [10, 0, 498, 0, 252378, 498],
                [100, 101, 2631, 51392, 1313850, 2530],
                [1000, 4007, 23787, 2046169, 11851558, 19780],
                [2000, 16270, 49580, 8317098, 24732716, 33310],
                [3000, 40317, 81711, 20614142, 40889656, 41394],
            ],
        )

    def caches(self, name, policies, sizes):
        sizes = ",".join(map(str, sizes))
        return trace("cache", PUBLIC[name], "--policy", policies, "--blocks", sizes)["points"]

    def test_finite_lru(self):
        sizes = [19, 195, 1000, 1953, 3906, 5859, 7812, 9765, 10000, 15625, 19531, 30000, 50000, 97656, 100000, 182790]
        some = slice(None, None, cluster.count(4, 1))
        for name, blocks, tokens in (
            (
                "conversation",
                ".0417 .0419 .0445 .0533 .0848 .1361 .1749 .2071 .2116 .2611 .2852 .3257 .3546 .3635 .3637 .3664",
                ".0425 .0427 .0454 .0543 .0865 .1387 .1783 .2111 .2157 .2663 .2908 .3322 .3615 .3707 .3708 .3736",
            ),
            (
                "synthetic",
                ".0018 .0168 .0841 .1424 .2285 .3094 .3681 .4206 .4239 .5260 .5666 .6242 .6396 .6396 .6396 .6396",
                "- .0171 .0857 .1451 .2328 .3151 .3749 .4283 .4318 .5357 .5770 .6356 .6512 .6512 .6512 .6512",
            ),
        ):
            # The cache that serves, with its own trees and eviction, hits what the plain rule hits.
            for policy in ("lru", "pool"):
                points = self.caches(name, policy, sizes[some])
                for point, block, token in zip(points, blocks.split()[some], tokens.split()[some], strict=True):
                    self.assertEqual(digits(point["block_hit"], block), block, (name, point))
                    if token != "-":
                        self.assertEqual(digits(point["token_hit"], token), token, (name, point))

    def test_mean_of_requests(self):
        for name, printed in (
            ("conversation", ".1624 .2972 .3850 .4030 .4080 .4094"),
            ("synthetic", ".0627 .2911 .4220 .4315 .4315 .4315"),
        ):
            points = self.caches(name, "lru", [1000, 10000, 30000, 50000, 100000, 182790])
            found = " ".join(digits(p["mean_request_token_hit"], ".1624") for p in points)
            self.assertEqual(found, printed)

    def test_other_policies(self):
        sizes, some = [1000, 10000, 30000, 50000, 100000], slice(None, None, cluster.count(2, 1))
        for name, rows in (
            (
                "conversation",
                {
                    "fifo": ".0445 .1820 .2950 .3336 .3563",
                    "lru": ".0445 .2116 .3257 .3546 .3637",
                    "lfu": ".0481 .1322 .2761 .3438 .3631",
                    "lfu-forever": ".0822 .1879 .2799 .3430 .3631",
                    "length-aware": ".0504 .1123 .2028 .2602 .3345",
                    "belady": ".1907 .3664 .3664 .3664 .3664",
                },
            ),
            (
                "synthetic",
                {
                    "fifo": ".0818 .4024 .5941 .6396 .6396",
                    "lru": ".0841 .4239 .6242 .6396 .6396",
                    "lfu": ".0416 .3608 .6260 .6396",
                    "lfu-forever": ".0850 .4208 .6260 .6396",
                    "length-aware": ".0192 .1866 .5068 .6396",
                    "belady": ".2767 .6180 .6396 .6396 .6396",
                },
            ),
        ):
            points = self.caches(name, ",".join(rows), sizes[some])
            for policy, printed in rows.items():
                hits, known = [p["block_hit"] for p in points if p["policy"] == policy], printed.split()[some]
                found = [digits(hit, p) for hit, p in zip(hits, known)]
                self.assertEqual(found, known, (name, policy))
        hits = [self.caches(n, "belady,lru", [5859])[0]["block_hit"] for n in ("conversation", "synthetic")]
        self.assertEqual([digits(hit, ".0000") for hit in hits], [".3532", ".5500"])
        self.assertEqual(digits(self.caches("conversation", "lru-head", [19, 20])[0]["block_hit"], ".0253"), ".0253")
        hits = [digits(p["block_hit"], ".0825") for p in self.caches("synthetic", "lru-head", [1000, 10000])]
        self.assertEqual(hits, [".0825", ".4235"])

    def test_popularity(self):
        for s, printed in (
            (self.conversation, "75.85 13.93 5.14 4.59 .50"),
            (self.synthetic, "58.45 6.62 7.62 24.99 2.33"),
        ):
            keys = ["used_once", "used_twice", "used_3_times", "used_4_to_10_times", "used_more"]
            found = [digits(100 * s["popularity"][key], p) for key, p in zip(keys, printed.split())]
            self.assertEqual(" ".join(found), printed)
        self.both("popularity/most_used popularity/used_over_100_times", "12031 1", "24 0")
        for s, runs in (
            (
                self.conversation,
                [
                    (0, 0, 12031),
                    (7402, 7412, 43),
                    (12026, 12026, 41),
                    (36031, 36031, 35),
                    (50791, 50791, 32),
                    (9731, 9777, 27),
                    (82969, 82969, 26),
                    (19929, 19939, 25),
                ],
            ),
            (
                self.synthetic,
                [(5457, 5532, 24), (7353, 7360, 24), (23441, 23445, 21), (11968, 12077, 20), (12881, 12954, 20)],
            ),
        ):
            found = [(r["first_id"], r["last_id"], r["uses"]) for r in s["popularity"]["hottest"]]
            self.assertEqual(found[: len(runs)], runs)
        ranks = "1 2 10 20 100 200 500 1000 2000 5000 10000 20000"
        keys = " ".join("popularity/uses_at_rank/" + rank for rank in ranks.split())
        self.both(keys, "12031 43 43 27 21 17 16 10 7 5 3 2", "24 24 24 24 20 20 13 11 9 6 4 1")
        keys = " ".join(f"popularity/hit_share_of_top/{10**i}" for i in range(5))
        self.both(keys, ".1138 .1174 .1385 .2549 .5948", ".0003 .003 .0287 .1824 .7999")

    def test_sessions(self):
        keys = "key_index sessions of_1 of_2 of_3_to_5 of_6_to_10 of_more max mean"
        keys = " ".join("sessions/" + key for key in keys.split())
        self.both(keys, "1 7373 5114 1311 781 134 33 43 1.632", "0 2211 1803 75 171 134 28 24 1.806")
        self.check(self.conversation, "sessions/requests_in_sessions", "6917")
        self.both("sessions/requests_in_sessions_share", ".575", ".548")
        self.both("parents/requests parents/cover_full_blocks", "4658 .850", "1782 .766")
        self.check(self.conversation, "parents/share", ".387")
        keys = " ".join("parents/gap_s/" + key for key in (PERCENTILES + " max mean").split())
        self.check(self.conversation, keys, "12 30 42 66 123 264 483 618 1482 2667 3030 214.7")
        self.check(self.synthetic, "parents/gap_s/p50 parents/gap_s/mean parents/gap_s/p90", "64.5 115.7 294.5")
        keys = "parents/input_growth/p50 parents/input_growth/mean parents/shorter"
        self.check(self.conversation, keys, "454 1239.5 .078")
        self.check(self.conversation, "reuse/gap_s/p50 reuse/gap_s/mean reuse/gap_s/p90", "114 212.9 519")
        keys = " ".join("reuse/stack_distance/" + key for key in (PERCENTILES.rsplit(" ", 1)[0] + " max").split())
        self.both(
            keys,
            "1 11 48 4293 8356 17848 31589 37656 85268 158282",
            "119 392 708 2269 6264 12728 20392 25547 33941 41186",
        )
        self.check(self.conversation, "reuse/stack_distance/mean", "13565")


if __name__ == "__main__":
    if not all(os.path.exists(path) for path in PUBLIC.values()):
        print(f"the public traces are not in {TRACES}; MCT_TRACES names their folder", file=sys.stderr)
        sys.exit(cluster.SKIP)
    unittest.main()
