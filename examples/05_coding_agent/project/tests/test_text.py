import unittest

from durations import parse, render


class TextTest(unittest.TestCase):
    def test_one_unit(self):
        self.assertEqual(parse("45s"), 45)
        self.assertEqual(parse("2h"), 7200)

    def test_units_add_up(self):
        self.assertEqual(parse("1h30m"), 5400)
        self.assertEqual(parse("1h1m1s"), 3661)

    def test_values_round_trip(self):
        for seconds in (1, 60, 3661, 86399):
            self.assertEqual(parse(render(seconds)), seconds)
