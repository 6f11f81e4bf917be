from privet.reports.comparison import write_comparison as write_comparison
from privet.reports.content import gather as gather
from privet.reports.run_report import write_report as write_report
