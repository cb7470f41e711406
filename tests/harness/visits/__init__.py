"""What people do at the console, drawn from seeds, before installations of every shape (`make visits`).

`shapes.py` draws an installation as the topics tell of it: processors of every state and size, with hostile texts and extreme numbers.
`stand.py` puts a control service before it, which one can restart, and whose brokers one can take away. `pages.py` reads a page as a
person does, and `checks.py` says what holds for each one. `walking.py` walks without a browser, by links, forms and buttons, and by
requests that are made by hand; `browsing.py` walks in Chromium, with a keyboard, a phone's width, and so on. `between.py` is what lies
between a browser and the service: slow, broken, or answering in its place.
`meeting.py`: several people, scripts and the command line at once, with old pages, before two replicas and a coordinator that decides.
`sessions.py`: those who log in by a provider, whose tokens end, are renewed, refused or changed meanwhile.
"""
