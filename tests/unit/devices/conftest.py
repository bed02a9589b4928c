"""Cards for the tests of this folder."""

from tests.nvml.stand_in import nvml_here, nvml_library, stand_in

__all__ = ["nvml_here", "nvml_library", "stand_in"]
