"""What these libraries keep beside the program goes to a folder that is thrown away, and nothing to a server."""

import os
import tempfile

# Each is read when its library is imported.
_folder = tempfile.TemporaryDirectory(prefix="axonym-neighbours-")
for _name in ("TRACKIO_DIR", "WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
    os.environ[_name] = _folder.name
os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
