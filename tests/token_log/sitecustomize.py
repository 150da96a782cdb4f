"""Python runs this at the start of every process that has this folder in PYTHONPATH: it notes when each token was drawn.

For tests/kill_harness.py, which compares what was drawn with what the store holds after a kill. TOKEN_LOG: a file of
float64 times. Tokens of canaries are left out: they are never kept.
"""

import os
import struct
import sys
import time

if {"pipeline"} & set(sys.orig_argv) and {"run", "generate"} & set(sys.orig_argv):
    from pipeline.engine.engine import Engine

    log = os.open(os.environ["TOKEN_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    generate, push = Engine.generate, Engine._push

    def noting_generate(self, requests, stop=None):
        self.noted = stop is not None
        return generate(self, requests, stop=stop)

    def noting_push(self, row, choice):
        if self.noted:
            os.write(log, struct.pack("<d", time.time()))
        return push(self, row, choice)

    Engine.generate, Engine._push = noting_generate, noting_push
