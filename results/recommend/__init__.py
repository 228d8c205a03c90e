"""Recommends which GPU to rent: a table with a row per GPU and count, and one sentence.

`questions` parses questions and prices; `figures` collects comparable throughputs, measured or published; `prediction`
fills gaps with marked rows; `answer` adds prices, order, sentence and notes; `output` formats tables and JSON. Start at
`answer.advise`.
"""
