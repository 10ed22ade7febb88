"""Tests run on the source, with the program in DUEWHEEL_BIN: python -m pytest clients/python"""

import sys
from pathlib import Path

here = Path(__file__).resolve().parent
sys.path[:0] = [str(here / "src"), str(here / "tests")]
pytest_plugins = ["duewheel.pytest_plugin", "pytester"]
