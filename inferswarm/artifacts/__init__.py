"""Where the bytes are: headers, ranges, origins."""
