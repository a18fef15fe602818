"""Every reader of foreign files under a fuzzer: `readers.py` lists them, `run.py` drives them."""
