"""Settings that hold for every test: one thread, and no look-up on a model hub."""

import os
import sys

# Before torch is imported: OpenMP reads its variable once. One thread makes sums reproducible, and
# tests that run side by side do not fight for cores.
for variable, value in {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
}.items():
    os.environ[variable] = value

if "torch" in sys.modules:  # a plugin was quicker
    sys.modules["torch"].set_num_threads(1)
