"""Published tables read into claims: bytes, texts, meanings of columns, numbers."""
