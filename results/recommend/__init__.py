"""Recommends which GPU to rent: one sentence, and a table with a row per GPU and count.

`options` parses questions, and has what an answer compares, with prices and limits; `answer` collects comparable
throughputs, measured or published, orders them and adds notes; `prediction` fills gaps with marked rows; `output` asks
`compare.decide` what to rent and writes sentence, table and JSON. Start at `answer.advise`.
"""
