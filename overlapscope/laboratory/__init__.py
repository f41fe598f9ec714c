"""The laboratory: experiments that are measured, recorded and analysed, and held against published figures."""
