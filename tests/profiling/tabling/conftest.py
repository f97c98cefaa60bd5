"""Raw folders of whole models: what ``tabling_samples.py`` writes, with the tables of a genuine nsys export."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
