"""Which GPU to rent: one table with a row for each GPU and count, and one sentence above it.

`questions` reads what is asked and which prices count; `figures` collects throughputs that may be compared (measured
here, or published) and `prediction` fills gaps with marked rows; `answer` adds prices, order, sentence and notes;
`output` writes tables and JSON. Start with `answer.answers`.
"""
