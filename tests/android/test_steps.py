"""Programs on ExecuTorch's real Java classes: twenty steps on a desktop JVM, held against eager torch in float32 and float64."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from algorithms.contract import Objective
from export.bundle import capture_graphs, make_bundle
from export.parity import check_parity
from simulation.simulate import build_objective
from tests.android.bridge import host_command
from tests.conftest import synthetic_fleet
from wire.bundle import Bundle, unpack
from wire.tensors import Tensors, decode_tensors, encode_tensors
