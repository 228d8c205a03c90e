"""Recommends which GPU to rent: one sentence, and a table with a row per GPU and count.

`questions` parses questions; `options` are what an answer compares; `prices` adds prices; `figures` collects comparable
throughputs, measured or published; `prediction` fills gaps with marked rows; `answer` adds limits, order and notes;
`sentence` asks `compare.decide` what to rent and writes the answer; `output` formats tables and JSON. Start at
`answer.advise`.
"""
