"""Recommends which GPU to rent: one sentence, and a table with a row per GPU and count.

`questions` parses questions; `options` are what an answer compares, with prices and limits; `figures` collects
comparable throughputs, measured or published; `prediction` fills gaps with marked rows; `answer` orders them and adds
notes; `output` asks `compare.decide` what to rent and writes sentence, table and JSON. Start at `answer.advise`.
"""
