"""Internal. What both readers of programs share: targets, links, places, arguments and the roofline."""
